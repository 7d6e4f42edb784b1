"""What each node knows of its parts now: one row per node, replaced by each newer one."""

from django.db import migrations

TABLE = """
CREATE TABLE node_readings (
    node_id bigint PRIMARY KEY,
    cluster_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    received_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    data bytea NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE node_readings ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE node_readings IS
    'Newest values of all parts of a node, packed by its agent: see collectors/wire/readings.py';
"""


class Migration(migrations.Migration):
    dependencies = [("store", "0004_steps_by_node")]

    operations = [migrations.RunSQL(TABLE, "DROP TABLE node_readings")]
