"""How many workers and servers a job is worth, and under which rule: found by simulation, before anything is rented.

A map, from the outside in:

    capacity           the plan: every number of workers under every rule, and how many servers each needs
    plan_report        the plan as advice, as a table, and as plain values for JSON
    server_simulation  workers and parameter servers, simulated as events
    simulation         the result of a simulation, its precision, and all-reduce, simulated
    rule_models        the rules to choose from, and which pushes make an update under each
    job_profile        the figures of the job and of the machines; what failures cost
    stragglers         how the time of a step varies
    units              numbers with units
    measuring_job      a short job that measures the figures of this machine

Nothing here imports JAX, except the short job itself.
"""
