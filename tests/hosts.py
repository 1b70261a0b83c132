"""Several hosts on one machine, for tests: those are skipped, and say why, where hosts cannot be made."""

from drills.hosts import Host as Host
from drills.hosts import NotHere as NotHere
from drills.hosts import simulated_hosts as simulated_hosts
