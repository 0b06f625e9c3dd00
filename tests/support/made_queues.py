"""Tables of queues in files, copied instead of made: DBOS takes 0.1 s for its migrations."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def tables_are_made_once() -> Iterator[None]:
    """Have DBOS make the tables of the session's first queue, and copy them into the others."""
    if "dbos" not in sys.modules:  # no collected test has a queue
        yield
        return
    import sqlalchemy as sa
    from dbos import DBOS

    migrate = DBOS.migrate
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as made:

        def copied(url: str, *rest: Any, **named: Any) -> None:
            file = sa.make_url(url).database
            if not url.startswith("sqlite") or not file or rest or named:
                migrate(url, *rest, **named)
                return
            with closing(sqlite3.connect(file)) as queue:
                if has_tables(made) and not has_tables(queue):
                    made.backup(queue)
                    return
                is_new = not has_tables(queue)
            migrate(url)
            if is_new:
                with closing(sqlite3.connect(file)) as queue:
                    queue.backup(made)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DBOS, "migrate", copied)
            yield


def has_tables(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
