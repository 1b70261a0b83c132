"""How many workers and servers a job is worth, and under which rule: found by simulation, before anything is rented.

A map, from the outside in:

    capacity           the plan: every number of workers under every rule, and how many servers each needs
    advice, report     what it comes to in a sentence; as a table, and as plain values for JSON
    serving            workers and parameter servers as events: who computes, sends, waits, is applied or dropped
    fair_link          a link, shared equally by what is under way
    ring               workers that all-reduce, without servers
    deciding           which pushes make an update: the rules of `stratagem.parameters.update_rules`, for thousands of workers
    confidence         how long to simulate: until the figure is good enough
    simulated          what a simulation found out
    failures           what losses and restarts cost, which are too rare to be simulated
    figures, rules     what is known of the job and of the machines; what a user can choose between
    stragglers, units  how steps vary; numbers with units
    measuring          the figures of this machine, by a short job
    measuring_job      that job

Nothing here imports JAX, except the short job itself.
"""
