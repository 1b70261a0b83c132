"""`stratagem bench`: which strategy suits this machine.

A map:

    contenders   the strategies at each number of workers, and the settings of their processes
    worker       the program of each of these processes
    results      reports of workers, medians of rounds, and advice
    report       results as a table, as JSON, and as curves
"""
