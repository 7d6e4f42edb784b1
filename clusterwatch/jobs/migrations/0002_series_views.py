"""Views for people who ask in SQL: rollups with the names of clusters, nodes, GPUs and jobs (docs/sql.md)."""

from django.db import migrations

# security_barrier stays off: these views show what their reader was granted, and a barrier would keep conditions
# from the indexes and partitions below.
VIEWS = """
CREATE FUNCTION ns_of(moment timestamptz) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
RETURN (extract(epoch FROM moment) * 1000000000)::bigint;
COMMENT ON FUNCTION ns_of IS 'Nanoseconds UTC since 1970 of a time, as t_ns columns hold it';

CREATE VIEW gpu_minute AS
SELECT c.name AS cluster, d.rack, d.name AS node, v.series AS gpu, s.number AS slot, v.metric, v.unit, v.minute,
       v.low, v.mean, v.high, v.last, v.t_ns, v.node_id, v.cluster_id
FROM node_minute_value v
JOIN fleet_node d ON d.id = v.node_id
JOIN fleet_cluster c ON c.id = v.cluster_id
LEFT JOIN fleet_slot s ON s.node_id = v.node_id AND s.gpu_index = v.series AND s.until IS NULL;
COMMENT ON VIEW gpu_minute IS
    'One row per cluster, node, GPU (or port, or 0 of the host), metric and minute; restrict t_ns with ns_of()';

CREATE VIEW metric_percentile AS
SELECT c.name AS cluster, CASE WHEN j.id IS NULL THEN p.scope ELSE 'job' END AS scope, j.key AS job, p.metric,
       to_timestamp(p.t_ns / 1000000000) AS at, p.count, p.mean, p.low, p.high, p.p1, p.p25, p.p50, p.p75, p.p99,
       p.t_ns, j.id AS job_id, p.cluster_id
FROM fleet_percentile p
JOIN fleet_cluster c ON c.id = p.cluster_id
LEFT JOIN jobs_job j ON p.scope = 'job:' || j.id;
COMMENT ON VIEW metric_percentile IS
    'Percentiles of a metric over a fleet or a job, every 10 seconds; restrict t_ns with ns_of()';
"""

UNDO = """
DROP VIEW gpu_minute, metric_percentile;
DROP FUNCTION ns_of;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial"), ("fleet", "0001_initial"), ("store", "0003_fleet_series")]

    operations = [migrations.RunSQL(VIEWS, UNDO)]
