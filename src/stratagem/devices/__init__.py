"""Devices: their names, those of this process, and the rules that say what goes where.

Importing this imports neither JAX nor NumPy; JAX's backends start when the devices are first looked at.

A map, from the outside in:

    configuration     `configure`
    device_scope      `device`: the block that says where things go
    placement_rules   which task gets which variable; `replica_device_setter`
    shard_rules       the sizes of variables, and rules that split them
    local             the devices of this process, how a name finds one, and the placement log
    cores             how tasks of one host share its cores
    global_arrays     arrays over devices of several processes
    backend           the border to JAX's backends
    threads           the threads that XLA needs, and the environment variables that set them
    device_spec       `DeviceSpec` and device strings
    whole_numbers     whole numbers as arguments
"""

from stratagem.devices.backend import compute_in_calling_thread as compute_in_calling_thread
from stratagem.devices.backend import guard_collectives as guard_collectives
from stratagem.devices.configuration import configure as configure
from stratagem.devices.cores import share_host as share_host
from stratagem.devices.device_scope import DeviceScope as DeviceScope
from stratagem.devices.device_scope import current_device as current_device
from stratagem.devices.device_scope import device as device
from stratagem.devices.device_spec import DeviceSpec as DeviceSpec
from stratagem.devices.device_spec import as_spec as as_spec
from stratagem.devices.local import LocalDevice as LocalDevice
from stratagem.devices.local import find_device as find_device
from stratagem.devices.local import is_local as is_local
from stratagem.devices.local import list_devices as list_devices
from stratagem.devices.local import log_placement as log_placement
from stratagem.devices.local import visible_gpus as visible_gpus
from stratagem.devices.placement_rules import GreedyLoadBalancing as GreedyLoadBalancing
from stratagem.devices.placement_rules import PlacementRule as PlacementRule
from stratagem.devices.placement_rules import ReplicaDeviceSetter as ReplicaDeviceSetter
from stratagem.devices.placement_rules import RoundRobin as RoundRobin
from stratagem.devices.placement_rules import assign as assign
from stratagem.devices.placement_rules import replica_device_setter as replica_device_setter
from stratagem.devices.shard_rules import FixedShards as FixedShards
from stratagem.devices.shard_rules import MaxSizeShards as MaxSizeShards
from stratagem.devices.shard_rules import MinSizeShards as MinSizeShards
from stratagem.devices.shard_rules import ShardRule as ShardRule
from stratagem.devices.shard_rules import byte_size as byte_size
from stratagem.devices.shard_rules import part_name as part_name
from stratagem.devices.shard_rules import row_ranges as row_ranges
from stratagem.devices.threads import virtual_device_environment as virtual_device_environment
