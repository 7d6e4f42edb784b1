"""Partitioned series tables. Partitions themselves are made by ``clusterwatch.store.partitions``."""

from django.db import migrations

# Every table: who sent it (cluster, node), its exactly-once key (epoch, sequence), its time.
# No foreign keys: partitions are dropped whole and a dropped node must not scan them.
TABLES = """
CREATE TABLE raw_block (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    codec text NOT NULL,
    metrics jsonb NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
ALTER TABLE raw_block ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE raw_block IS 'One wall minute of a node (t_ns), compressed by its agent, as it came';

CREATE TABLE node_minute (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    metrics text[] NOT NULL,
    first_index integer[] NOT NULL,
    series integer[] NOT NULL,
    low real[] NOT NULL,
    mean real[] NOT NULL,
    high real[] NOT NULL,
    last real[] NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
CREATE INDEX node_minute_by_time ON node_minute (cluster_id, t_ns);
COMMENT ON TABLE node_minute IS 'One-minute rollup of a node: metric i holds series[i] numbers from first_index[i] (1-based)';

CREATE VIEW node_minute_value AS
SELECT n.cluster_id, n.node_id, to_timestamp(n.t_ns / 1000000000) AS minute, n.t_ns, m.metric, s.index AS series,
       n.low[m.first_index + s.index] AS low, n.mean[m.first_index + s.index] AS mean,
       n.high[m.first_index + s.index] AS high, n.last[m.first_index + s.index] AS last
FROM node_minute n
CROSS JOIN LATERAL unnest(n.metrics, n.first_index, n.series) AS m(metric, first_index, series)
CROSS JOIN LATERAL generate_series(0, m.series - 1) AS s(index);

CREATE TABLE event (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    source text NOT NULL,
    kind text NOT NULL,
    severity text NOT NULL,
    text text NOT NULL,
    fields jsonb NOT NULL,
    job_id bigint,
    attempt integer,
    world text,
    rank integer,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
CREATE INDEX event_by_job ON event (job_id, t_ns) WHERE job_id IS NOT NULL;
CREATE INDEX event_by_time ON event (cluster_id, t_ns);

CREATE TABLE steps (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    world text NOT NULL,
    rank integer NOT NULL,
    step bigint[] NOT NULL,
    end_ns bigint[] NOT NULL,
    duration_s double precision[] NOT NULL,
    data_wait_s double precision[] NOT NULL,
    checkpoint_s double precision[] NOT NULL,
    gc_s double precision[] NOT NULL,
    cpu_s double precision[] NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
CREATE INDEX steps_by_job ON steps (job_id, t_ns);

CREATE TABLE trace (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    world text NOT NULL,
    rank integer NOT NULL,
    pid bigint NOT NULL,
    capture_id bigint,
    want text NOT NULL,
    recorder text NOT NULL,
    columns bytea NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
ALTER TABLE trace ALTER COLUMN columns SET STORAGE EXTERNAL;
CREATE INDEX trace_by_job ON trace (job_id, t_ns);
CREATE INDEX trace_by_capture ON trace (capture_id) WHERE capture_id IS NOT NULL;

CREATE TABLE stacks (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    world text NOT NULL,
    rank integer NOT NULL,
    pid bigint NOT NULL,
    capture_id bigint,
    source text NOT NULL,
    error text NOT NULL,
    process_state text NOT NULL,
    wchan text NOT NULL,
    threads jsonb NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
CREATE INDEX stacks_by_job ON stacks (job_id, t_ns);
CREATE INDEX stacks_by_capture ON stacks (capture_id) WHERE capture_id IS NOT NULL;

CREATE TABLE phase (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    job_id bigint NOT NULL,
    attempt integer NOT NULL,
    world text NOT NULL,
    rank integer NOT NULL,
    phase text NOT NULL,
    before text NOT NULL,
    before_s double precision NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
CREATE INDEX phase_by_job ON phase (job_id, t_ns);
"""

UNDO = """
DROP VIEW node_minute_value;
DROP TABLE raw_block, node_minute, event, steps, trace, stacks, phase;
"""


class Migration(migrations.Migration):
    dependencies = [("store", "0001_initial")]

    operations = [migrations.RunSQL(TABLES, UNDO)]
