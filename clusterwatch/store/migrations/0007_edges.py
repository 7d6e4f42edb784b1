"""Transfers of a job's ranks, per node and minute in one packed column."""

from django.db import migrations

TABLE = """
CREATE TABLE edges (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    world text NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
ALTER TABLE edges ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX edges_by_job ON edges (job_id, t_ns);
COMMENT ON TABLE edges IS
    'How long calls of ranks of one job on one node took, as told at one time (t_ns): see store/edge_pack.py';
"""


class Migration(migrations.Migration):
    dependencies = [("store", "0006_devices")]

    operations = [migrations.RunSQL(TABLE, "DROP TABLE edges")]
