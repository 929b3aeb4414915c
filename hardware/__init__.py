"""The virtual hardware of a CloudMatrix384: NPUs, topology, UB shared memory."""
