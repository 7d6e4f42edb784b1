"""Blocks know their header by a number, rollups are four plain arrays, and a fleet's series have tables.

Rows of ``raw_block`` and ``node_minute`` of before are dropped: their headers stood in each row.
"""

from django.db import migrations

# No foreign keys: partitions are dropped whole, and node-keyed tables may lie on other machines than block_shape.
TABLES = """
DROP VIEW node_minute_value;
DROP TABLE raw_block, node_minute;

CREATE TABLE block_shape (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id bigint NOT NULL,
    digest bytea NOT NULL,
    metrics jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    last_seen_on date NOT NULL DEFAULT current_date,
    UNIQUE (cluster_id, digest)
);
COMMENT ON TABLE block_shape IS 'Header of minute blocks: array of {name, unit, resolution, series, samples}';

CREATE TABLE raw_block (
    cluster_id bigint NOT NULL,
    node_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    epoch text NOT NULL,
    sequence bigint NOT NULL,
    shape_id bigint NOT NULL,
    codec text NOT NULL,
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
    shape_id bigint NOT NULL,
    low real[] NOT NULL,
    mean real[] NOT NULL,
    high real[] NOT NULL,
    last real[] NOT NULL,
    PRIMARY KEY (node_id, t_ns, epoch, sequence)
) PARTITION BY RANGE (t_ns);
ALTER TABLE node_minute
    ALTER COLUMN low SET STORAGE EXTERNAL, ALTER COLUMN mean SET STORAGE EXTERNAL,
    ALTER COLUMN high SET STORAGE EXTERNAL, ALTER COLUMN last SET STORAGE EXTERNAL;
CREATE INDEX node_minute_by_time ON node_minute (cluster_id, t_ns);
COMMENT ON TABLE node_minute IS 'One-minute rollup of a node: all series of all metrics in the order of the header; NaN: no sample';

CREATE TABLE fleet_minute (
    cluster_id bigint NOT NULL,
    metric text NOT NULL,
    t_ns bigint NOT NULL,
    slots_version integer NOT NULL,
    node_count integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (cluster_id, metric, t_ns)
) PARTITION BY RANGE (t_ns);
ALTER TABLE fleet_minute ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE fleet_minute IS 'One minute of one metric of all slots: zstd of shuffled float32 planes low, mean, high, last';

CREATE TABLE fleet_horizon (
    cluster_id bigint PRIMARY KEY,
    t_ns bigint NOT NULL
);
COMMENT ON TABLE fleet_horizon IS 'Newest minute that fleet_minute was built for; what arrives for it or an older one is late';

CREATE TABLE late_minute (
    cluster_id bigint NOT NULL,
    t_ns bigint NOT NULL,
    notes integer NOT NULL DEFAULT 1,
    PRIMARY KEY (cluster_id, t_ns)
);
COMMENT ON TABLE late_minute IS 'Minutes to be built again; notes rises with each late transaction';

CREATE TABLE fleet_percentile (
    cluster_id bigint NOT NULL,
    scope text NOT NULL,
    metric text NOT NULL,
    t_ns bigint NOT NULL,
    count integer NOT NULL,
    mean real NOT NULL,
    low real NOT NULL,
    high real NOT NULL,
    p1 real NOT NULL,
    p25 real NOT NULL,
    p50 real NOT NULL,
    p75 real NOT NULL,
    p99 real NOT NULL,
    PRIMARY KEY (cluster_id, scope, metric, t_ns)
) PARTITION BY RANGE (t_ns);
COMMENT ON TABLE fleet_percentile IS 'A metric over a scope (fleet, job:<id>) each 10 s, of the newest values of its slots';

CREATE TABLE map_frame (
    cluster_id bigint NOT NULL,
    mode text NOT NULL,
    t_ns bigint NOT NULL,
    slots_version integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (cluster_id, mode, t_ns)
) PARTITION BY RANGE (t_ns);
ALTER TABLE map_frame ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE map_frame IS 'The map of a cluster in one colour mode each 10 s: zstd of one byte per slot';

CREATE VIEW block_metric AS
SELECT b.id AS shape_id, m.place::integer, m.header ->> 'name' AS metric, m.header ->> 'unit' AS unit,
       (m.header ->> 'resolution')::double precision AS resolution, (m.header ->> 'series')::integer AS series,
       (m.header ->> 'samples')::integer AS samples,
       1 + coalesce(sum((m.header ->> 'series')::integer) OVER (
           PARTITION BY b.id ORDER BY m.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
       ), 0)::integer AS first_index
FROM block_shape b CROSS JOIN LATERAL jsonb_array_elements(b.metrics) WITH ORDINALITY AS m(header, place);
COMMENT ON VIEW block_metric IS 'Metrics of a header; the arrays of node_minute hold series numbers from first_index (1-based)';

CREATE VIEW node_minute_value AS
SELECT n.cluster_id, n.node_id, to_timestamp(n.t_ns / 1000000000) AS minute, n.t_ns, m.metric, m.unit,
       s.index AS series,
       nullif(n.low[m.first_index + s.index], 'NaN') AS low, nullif(n.mean[m.first_index + s.index], 'NaN') AS mean,
       nullif(n.high[m.first_index + s.index], 'NaN') AS high, nullif(n.last[m.first_index + s.index], 'NaN') AS last
FROM node_minute n
JOIN block_metric m ON m.shape_id = n.shape_id
CROSS JOIN LATERAL generate_series(0, m.series - 1) AS s(index);
COMMENT ON VIEW node_minute_value IS 'One row per node, minute, metric and series (GPU, port or 0 of the host)';
"""

UNDO = """
DROP VIEW node_minute_value, block_metric;
DROP TABLE raw_block, node_minute, block_shape, fleet_minute, fleet_horizon, late_minute, fleet_percentile, map_frame;

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

CREATE VIEW node_minute_value AS
SELECT n.cluster_id, n.node_id, to_timestamp(n.t_ns / 1000000000) AS minute, n.t_ns, m.metric, s.index AS series,
       n.low[m.first_index + s.index] AS low, n.mean[m.first_index + s.index] AS mean,
       n.high[m.first_index + s.index] AS high, n.last[m.first_index + s.index] AS last
FROM node_minute n
CROSS JOIN LATERAL unnest(n.metrics, n.first_index, n.series) AS m(metric, first_index, series)
CROSS JOIN LATERAL generate_series(0, m.series - 1) AS s(index);
"""


class Migration(migrations.Migration):
    dependencies = [("store", "0002_series_tables")]

    operations = [migrations.RunSQL(TABLES, UNDO)]
