"""A process that enqueues and cancels until it is killed, and writes down what was acknowledged.

python -m tests.torture.kill.enqueuer SEED
"""

import random
import sys
import time

from tests.torture.kill.app import SIMPLE, app, breed, cancel, serve, trace

KEPT = 50
# Faster than this and the workers, which are killed all the time, never catch up.
LONGEST_PAUSE = 0.02


def enqueue(chance: random.Random) -> list[str]:
    """Enqueue in one of the ways there are; the ids are acknowledged when this returns."""
    way = chance.random()
    if way < 0.1:
        return [job.id for job in app.run_many(f.bind() for f in chance.sample(SIMPLE, 4))]
    if way < 0.2:
        return [app.run(breed, chance.randrange(4)).id]
    if way < 0.3:
        return [app.run_after(chance.random() / 2, chance.choice(SIMPLE)).id]
    if way < 0.45:
        return [order()]
    return [app.run(chance.choice(SIMPLE)).id]


def order() -> str:
    """A row of the user's and the job that belongs to it: both, or neither."""
    with app.transaction() as tx:
        job = tx.run(serve)
        tx.execute("INSERT INTO orders (job_id) VALUES (?)", (job.id,))
    return job.id


def cancel_one(recent: list[str], chance: random.Random) -> None:
    victim = chance.choice(recent)
    if chance.random() < 0.5:
        trace.append("acknowledged", app.run(cancel, victim).id)
    elif app.cancel(victim):
        trace.append("canceled", victim)


def main(seed: int) -> None:
    chance = random.Random(seed)
    recent: list[str] = []
    while True:
        ids = enqueue(chance)
        for job_id in ids:
            trace.append("acknowledged", job_id)
        recent = (recent + ids)[-KEPT:]
        if chance.random() < 0.15:
            cancel_one(recent, chance)
        time.sleep(chance.random() * LONGEST_PAUSE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
