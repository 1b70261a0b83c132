"""The command line: start, supervise and inspect jobs. Imports no JAX until a command needs it.

A map:

    cli                     the entry point, and the table of commands
    run, serve, status      commands that start jobs, serve tasks, and show tasks
    check, bench, plan      commands that try devices, compare strategies, and plan capacity
    demo, convert, emit     commands that show a job, convert data sets, and write manifests
    demo_job                the script of the demo
    job_shape               what a job consists of: tasks, commands, environments
    tasks                   names, ports, exit codes and failures of tasks
    policy                  what to do when a task ends, a signal comes or time passes
    supervisor              carries out the policy
    keeper                  the process between the supervisor and one task
    output                  lines of tasks on their way to the terminal and to log files
    running_jobs            this user's jobs on this machine, for `stratagem status`
    quiet_run               jobs with a deadline, for other commands
"""
