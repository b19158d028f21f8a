"""A message that is deleted automatically a few seconds after it was sent.

Run it with: python examples/expiring_messages.py
"""

import shutil
import tempfile
import time

from duly import Duly, Tx

SECONDS = 2
FOLDER = tempfile.mkdtemp()
app = Duly(f"sqlite:///{FOLDER}/chat.db")


@app.mutation
def send_expiring(tx: Tx, author: str, body: str) -> int:
    message_id = tx.execute(
        "INSERT INTO messages (author, body) VALUES (?, ?) RETURNING id", (author, body)
    ).scalar()
    # In the same transaction: if the message exists, so does the job that deletes it.
    tx.run_after(SECONDS, destroy, message_id)
    return message_id


@app.mutation
def destroy(tx: Tx, message_id: int) -> None:
    tx.execute("DELETE FROM messages WHERE id = ?", (message_id,))


def messages() -> list[str]:
    with app.transaction() as tx:
        return [
            f"{author}: {body}" for author, body in tx.execute("SELECT author, body FROM messages")
        ]


def main() -> None:
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, author TEXT, body TEXT)")
    with app:  # jobs run in threads of this process
        sent = app.run(send_expiring, "Ada", "read this quickly")
        sent.result(timeout=10)
        (end,) = sent.children()
        print(f"sent:      {messages()}, destroy is {end.state} until {end.run_at:%H:%M:%S}")
        assert messages() == ["Ada: read this quickly"]

        end.result(timeout=10)
        print(f"destroyed: {messages()}, destroy has {end.state}")
        assert messages() == []

        kept = app.run(send_expiring, "Ada", "this one may stay")
        kept.result(timeout=10)
        print(f"cancel:    {kept.children()[0].cancel()}")
        time.sleep(SECONDS + 1)
        print(f"kept:      {messages()}")
        assert messages() == ["Ada: this one may stay"]
    app.close()
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
