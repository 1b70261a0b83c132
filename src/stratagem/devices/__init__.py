"""Devices: their names, those of this process, and the rules that say what goes where.

Importing this imports neither JAX nor NumPy; JAX's backends start when the devices are first looked at.
"""

from stratagem.devices.backend import compute_in_calling_thread as compute_in_calling_thread
from stratagem.devices.backend import guard_collectives as guard_collectives
from stratagem.devices.balance import GreedyLoadBalancing as GreedyLoadBalancing
from stratagem.devices.balance import PlacementRule as PlacementRule
from stratagem.devices.balance import RoundRobin as RoundRobin
from stratagem.devices.balance import assign as assign
from stratagem.devices.configuration import configure as configure
from stratagem.devices.cores import share_host as share_host
from stratagem.devices.gpus import visible_gpus as visible_gpus
from stratagem.devices.local import LocalDevice as LocalDevice
from stratagem.devices.local import find_device as find_device
from stratagem.devices.local import is_local as is_local
from stratagem.devices.local import list_devices as list_devices
from stratagem.devices.log import log_placement as log_placement
from stratagem.devices.scope import DeviceScope as DeviceScope
from stratagem.devices.scope import current_device as current_device
from stratagem.devices.scope import device as device
from stratagem.devices.setter import ReplicaDeviceSetter as ReplicaDeviceSetter
from stratagem.devices.setter import replica_device_setter as replica_device_setter
from stratagem.devices.shards import FixedShards as FixedShards
from stratagem.devices.shards import MaxSizeShards as MaxSizeShards
from stratagem.devices.shards import MinSizeShards as MinSizeShards
from stratagem.devices.shards import ShardRule as ShardRule
from stratagem.devices.shards import part_name as part_name
from stratagem.devices.shards import row_ranges as row_ranges
from stratagem.devices.sizes import byte_size as byte_size
from stratagem.devices.spec import DeviceSpec as DeviceSpec
from stratagem.devices.threads import virtual_device_environment as virtual_device_environment
