"""A process of root's that file permissions bind like any other."""

import ctypes
import os
import struct

VERSION_3 = 0x20080522
DAC_OVERRIDE = 1 << 1


def obey_modes() -> None:
    """Root reads and writes whatever the modes of a file say; from now on it does not."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header = struct.pack("Ii", VERSION_3, 0)
        held = ctypes.create_string_buffer(24)
        if libc.capget(header, held) == 0:
            effective, permitted, *others = struct.unpack("6I", held.raw)
            less = (effective & ~DAC_OVERRIDE, permitted & ~DAC_OVERRIDE)
            libc.capset(header, struct.pack("6I", *less, *others))
