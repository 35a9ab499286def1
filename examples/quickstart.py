"""Three readers wait; a task and a thread answer two of them: ``python -m examples.quickstart``."""

import asyncio

from purgatory import Purgatory

log: list[str] = []


async def read(room: Purgatory, after: int) -> None:
    orders = await room.wait_value(lambda: log[after:] or None, keys={"orders": after + 1}, timeout=0.5)
    print(f"after {after}:", orders or "none in time")


async def main() -> None:
    async with Purgatory("shop") as room:
        readers = [asyncio.create_task(read(room, after)) for after in range(3)]
        await asyncio.sleep(0)
        print("waiting:", len(room))

        log.append("apples")
        room.check_soon("orders", len(log))  # skips the readers that wait for a later order
        await readers[0]

        def write() -> None:  # runs in a thread, like a "def" endpoint of FastAPI
            log.append("bread")
            room.check_threadsafe("orders", len(log))

        await asyncio.to_thread(write)
        await asyncio.gather(*readers)


if __name__ == "__main__":
    asyncio.run(main())
