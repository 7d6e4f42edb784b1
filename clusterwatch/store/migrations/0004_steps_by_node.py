"""Steps are kept per node and minute in one packed column; rows of before, one per rank, are dropped."""

from django.db import migrations

TABLES = """
DROP TABLE steps;
CREATE TABLE steps (
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
ALTER TABLE steps ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX steps_by_job ON steps (job_id, t_ns);
CREATE INDEX steps_by_time ON steps (cluster_id, t_ns);
COMMENT ON TABLE steps IS
    'Steps that ranks of one job on one node told of at one time (t_ns): see store/step_pack.py';

CREATE TABLE job_steps (
    cluster_id bigint NOT NULL,
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    t_ns bigint NOT NULL,
    steps bigint NOT NULL,
    newest_step bigint NOT NULL,
    low_s double precision NOT NULL,
    p1_s double precision NOT NULL,
    p50_s double precision NOT NULL,
    p99_s double precision NOT NULL,
    high_s double precision NOT NULL,
    slow_worlds text[] NOT NULL,
    slow_ranks integer[] NOT NULL,
    slow_s double precision[] NOT NULL,
    PRIMARY KEY (job_id, attempt, t_ns)
) PARTITION BY RANGE (t_ns);
COMMENT ON TABLE job_steps IS 'Step durations of a job, one row per minute; the slowest ranks with their median';
"""


class Migration(migrations.Migration):
    """Forward only: the packed rows cannot be told apart into the old ones by SQL."""

    dependencies = [("store", "0003_fleet_series")]

    operations = [migrations.RunSQL(TABLES, migrations.RunSQL.noop)]
