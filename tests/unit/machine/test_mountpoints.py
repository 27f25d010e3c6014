"""The kernel's table of mounts."""

from __future__ import annotations

from trainshed.machine.mountpoints import MountPoint, is_mounted, mount_points

TABLE = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
44 22 0:39 / /tmp/with\040space\134 ro,nosuid - fuse.rclone trainshed-1-2 ro,user_id=0
45 22 0:40 / /tmp/über rw master:3 shared:4 - tmpfs none rw
damaged
"""


def test_the_table_is_read_with_odd_names() -> None:
    assert mount_points(TABLE) == [
        MountPoint("/", "ext4", "/dev/vda"),
        MountPoint("/tmp/with space\\", "fuse.rclone", "trainshed-1-2"),
        MountPoint("/tmp/über", "tmpfs", "none"),
    ]


def test_this_machine_has_a_root() -> None:
    assert is_mounted("/")
    assert not is_mounted("/nowhere")
