"""Running the product: embedded servers, the supervisor of `clusterwatch up`, doctor and status.

In: environment variables, the state folder, the process table. Out: running processes, files of the state
folder (`endpoints.json`, `status.json`, logs), one clear line for each thing that is wrong.
May be imported by `project` and `cli`; imports Django only in `bootstrap`, a process of its own.
"""
