"""What the queue takes of DBOS that DBOS keeps to itself, so that an update may change it.

All else goes through DBOS's public client. test_dbos_internals.py names each of these.
"""

from typing import Any

from dbos import DBOSClient
from dbos._migration import get_migration_versions, get_sqlite_migration_versions


class Internals:
    """The database behind a client.

    engine: of SQLAlchemy. jobs, inputs, outputs: the tables `workflow_status`, `workflow_input` and
    `workflow_output`, each with a row a job.
    """

    def __init__(self, client: DBOSClient) -> None:
        self._database: Any = client._sys_db  # pyright: ignore[reportPrivateUsage]
        self.engine: Any = self._database.engine
        self.jobs: Any = self._database.tables.workflow_status
        self.inputs: Any = self._database.tables.workflow_input
        self.outputs: Any = self._database.tables.workflow_output

    def now(self) -> Any:
        """The database's clock in milliseconds, as an expression."""
        return self._database._now_ms_sql()

    def versions(self) -> tuple[int, int]:
        """Of the tables: the version they have, 0 if there are none, and the one DBOS knows."""
        schema = self._database.schema
        if schema is None:  # SQLite has none
            return get_sqlite_migration_versions(self.engine)
        return get_migration_versions(self.engine, schema, self._database.use_listen_notify)

    def end(self, job: str, state: str, output: str, token: str) -> bool:
        """Record a running job's end and output; False, and no record, if the token is not its."""
        return self._database.update_workflow_outcome(job, state, output=output, owner_xid=token)
