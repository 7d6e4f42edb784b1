/* The list of jobs: steps and last progress live from the cluster's frame. */

import { updateJobs } from "./jobtable.js";
import { live } from "./live.js";

const clusterId = document.getElementById("cluster-id").dataset.id;
if (clusterId) live.subscribe(`cluster:${clusterId}`, { frame: (state) => updateJobs(state.jobs) });
