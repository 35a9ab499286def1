import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationKey;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;

/**
 * Kafka's purgatory under the load of {@code benchmarks/watching.py}.
 *
 * <p>Reads lines of three numbers, {@code OUTSTANDING KEYS STEPS}, from standard input, and answers each with the
 * number of operations completed. A queue of operations is made when its shape is first named, and is kept. A step
 * parks a new operation and completes the oldest one through its first key. The caller measures the process's CPU time.
 */
public final class KafkaPurgatory {
    private static final int KEY_SPACE = 100_000;
    private static final long TIMEOUT_MS = 30_000;

    private record Key(int number) implements DelayedOperationKey {
        @Override
        public String keyLabel() {
            return Integer.toString(number);
        }
    }

    /** Complete when {@code ready} is set. */
    private static final class Request extends DelayedOperation {
        final Key key;
        boolean ready;

        Request(long timeoutMs, Key key) {
            super(timeoutMs);
            this.key = key;
        }

        @Override
        public boolean tryComplete() {
            return ready && forceComplete();
        }

        @Override
        public void onComplete() {
        }

        @Override
        public void onExpiration() {
        }
    }

    private final DelayedOperationPurgatory<Request> purgatory;
    private final List<List<Key>> keys;
    private final ArrayDeque<Request> line = new ArrayDeque<>();
    private long number;

    private KafkaPurgatory(int outstanding, int keysEach) {
        purgatory = new DelayedOperationPurgatory<>("watching-" + outstanding + "-" + keysEach, 0);
        keys = IntStream.range(0, KEY_SPACE)
            .mapToObj(start -> IntStream.range(0, keysEach)
                .mapToObj(j -> new Key((int) ((7L * start + j) % KEY_SPACE)))
                .toList())
            .toList();
        for (int i = 0; i < outstanding; i++) {
            park();
        }
    }

    private void park() {
        List<Key> own = keys.get((int) (number++ % KEY_SPACE));
        Request request = new Request(TIMEOUT_MS, own.get(0));
        purgatory.tryCompleteElseWatch(request, own);
        line.add(request);
    }

    private int steps(int count) {
        int done = 0;
        for (int i = 0; i < count; i++) {
            park();
            Request oldest = line.remove();
            oldest.ready = true;
            done += purgatory.checkAndComplete(oldest.key);
        }
        return done;
    }

    public static void main(String[] arguments) throws Exception {
        Map<List<Integer>, KafkaPurgatory> lines = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String asked = in.readLine(); asked != null; asked = in.readLine()) {
            String[] words = asked.split(" ");
            List<Integer> shape = List.of(Integer.valueOf(words[0]), Integer.valueOf(words[1]));
            KafkaPurgatory line = lines.computeIfAbsent(shape, s -> new KafkaPurgatory(s.get(0), s.get(1)));
            System.out.println(line.steps(Integer.parseInt(words[2])));
        }
        for (KafkaPurgatory line : lines.values()) {
            line.purgatory.shutdown();
        }
    }
}
