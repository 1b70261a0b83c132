"""Whether strategies do on these devices what they promise: `stratagem check`.

A map:

    cases        what is checked where
    trial        one strategy in this process: the same as on one device, and how fast
    task         a task of a job that tries a strategy, and leaves what it found
"""
