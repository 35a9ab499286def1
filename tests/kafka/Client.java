import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client, driven line by line.
 *
 * <p>A line of standard input is {@code NUMBER TAB OPERATION TAB KEY=VALUE ...}; values that are bytes are in base 64,
 * and keys with a dot are options of the client. Each operation runs in a thread of its own. A line of standard output
 * is {@code NUMBER TAB KIND TAB TEXT}: {@code ok} or {@code error} ends the operation; a member of a group also
 * reports {@code assigned}, {@code revoked} and {@code value}. At the end of the input the process halts: nothing is
 * closed, as when it is killed.
 */
public final class Client {
    private static final Set<String> STOPPED = ConcurrentHashMap.newKeySet();

    private final String number;
    private final Map<String, String> given;

    private Client(String number, Map<String, String> given) {
        this.number = number;
        this.given = given;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            if (words[1].equals("close")) {
                STOPPED.add(words[0]);
                continue;
            }
            Map<String, String> given = new HashMap<>();
            for (int i = 2; i < words.length; i++) {
                int at = words[i].indexOf('=');
                given.put(words[i].substring(0, at), words[i].substring(at + 1));
            }
            Client client = new Client(words[0], given);
            Thread thread = new Thread(() -> client.run(words[1]));
            thread.setDaemon(true);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }

    private void run(String operation) {
        try {
            tell("ok", switch (operation) {
                case "create" -> create();
                case "delete" -> delete();
                case "produce" -> produce();
                case "consume" -> consume();
                case "offsets" -> offsets();
                case "commit" -> commit();
                case "member" -> member();
                case "groups" -> groups();
                default -> throw new IllegalArgumentException("there is no operation " + operation);
            });
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            tell("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
    }

    private void tell(String kind, String text) {
        synchronized (System.out) {
            System.out.println(number + "\t" + kind + "\t" + text.replace('\n', ' '));
            System.out.flush();
        }
    }

    private String topic() {
        return given.get("topic");
    }

    private TopicPartition partition() {
        return new TopicPartition(topic(), 0);
    }

    private int integer(String name) {
        return Integer.parseInt(given.get(name));
    }

    private Map<String, Object> options() {
        Map<String, Object> options = new HashMap<>();
        given.forEach((name, value) -> {
            if (name.contains(".") || name.equals("acks")) {
                options.put(name, value);
            }
        });
        return options;
    }

    private List<byte[]> values() {
        List<byte[]> values = new ArrayList<>();
        for (String value : given.get("values").split(",")) {
            values.add(Base64.getDecoder().decode(value));
        }
        return values;
    }

    private static String base64(byte[] value) {
        return Base64.getEncoder().encodeToString(value);
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        return new KafkaConsumer<>(options(), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private String create() throws Exception {
        try (Admin admin = Admin.create(options())) {
            NewTopic topic = new NewTopic(topic(), integer("partitions"), (short) integer("replicas"));
            admin.createTopics(List.of(topic)).all().get();
            return "";
        }
    }

    private String delete() throws Exception {
        try (Admin admin = Admin.create(options())) {
            RecordsToDelete before = RecordsToDelete.beforeOffset(integer("offset"));
            var deleted = admin.deleteRecords(Map.of(partition(), before)).lowWatermarks().get(partition());
            return String.valueOf(deleted.get().lowWatermark());
        }
    }

    private String groups() throws Exception {
        try (Admin admin = Admin.create(options())) {
            List<String> found = new ArrayList<>();
            admin.listGroups().all().get().forEach(group -> found.add(group.groupId()));
            return String.join(",", found);
        }
    }

    private String produce() throws Exception {
        Integer partition = given.containsKey("partition") ? integer("partition") : null;
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(options(), new ByteArraySerializer(), new ByteArraySerializer())) {
            for (byte[] value : values()) {
                sent.add(producer.send(new ProducerRecord<>(topic(), partition, null, value)));
            }
            List<String> offsets = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                offsets.add(String.valueOf(one.get().offset()));
            }
            return String.join(",", offsets);
        }
    }

    private String consume() throws Exception {
        // Without a timeout the client waits at the end for its last fetch, which may be parked.
        var consumer = consumer();
        try (AutoCloseable closing = () -> consumer.close(CloseOptions.timeout(Duration.ZERO))) {
            consumer.assign(List.of(partition()));
            consumer.seekToBeginning(List.of(partition()));
            int wanted = integer("number");
            List<String> values = new ArrayList<>();
            long deadline = System.nanoTime() + Duration.ofMillis(integer("patience")).toNanos();
            while (values.size() < wanted && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    values.add(base64(record.value()));
                }
            }
            return String.join(",", values);
        }
    }

    private String offsets() {
        try (var consumer = consumer()) {
            List<TopicPartition> asked = List.of(partition());
            long first = consumer.beginningOffsets(asked).get(partition());
            return first + "," + consumer.endOffsets(asked).get(partition());
        }
    }

    private String commit() {
        try (var consumer = consumer()) {
            consumer.assign(List.of(partition()));
            consumer.commitSync(Map.of(partition(), new OffsetAndMetadata(integer("offset"))));
        }
        try (var consumer = consumer()) {
            return String.valueOf(consumer.committed(Set.of(partition())).get(partition()).offset());
        }
    }

    private String member() {
        Set<Integer> assigned = new HashSet<>();
        try (var consumer = consumer()) {
            consumer.subscribe(List.of(topic()), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    if (!partitions.isEmpty()) {
                        tell("revoked", numbers(partitions.stream().map(TopicPartition::partition).toList()));
                    }
                    partitions.forEach(each -> assigned.remove(each.partition()));
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    partitions.forEach(each -> assigned.add(each.partition()));
                    tell("assigned", numbers(assigned));
                }
            });
            while (!STOPPED.contains(number)) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                    tell("value", base64(record.value()));
                }
            }
        }
        return "";
    }

    private static String numbers(Collection<Integer> numbers) {
        return String.join(",", numbers.stream().map(String::valueOf).toList());
    }
}
