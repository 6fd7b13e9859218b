"""Users and roles of an etcd, as its administrator sets them up."""

from __future__ import annotations

from typing import Any

from common.coord import Coord
from common.coord.wire import messages

USER = "anna"
PASSWORD = "secret"


async def with_users(coord: Coord) -> None:
    """Turn users on: root may do all, anna what is below the cluster's prefix."""
    prefix = coord.keys.root.encode()
    permission = messages.Permission(
        permType=messages.Permission.READWRITE, key=prefix, range_end=prefix[:-1] + b"0"
    )
    role = messages.AuthRoleGrantPermissionRequest(name="crawl", perm=permission)
    steps: list[tuple[str, Any]] = [
        ("UserAdd", messages.AuthUserAddRequest(name="root", password="r")),
        ("RoleAdd", messages.AuthRoleAddRequest(name="root")),
        ("UserGrantRole", messages.AuthUserGrantRoleRequest(user="root", role="root")),
        ("UserAdd", messages.AuthUserAddRequest(name=USER, password=PASSWORD)),
        ("RoleAdd", messages.AuthRoleAddRequest(name="crawl")),
        ("RoleGrantPermission", role),
        ("UserGrantRole", messages.AuthUserGrantRoleRequest(user=USER, role="crawl")),
        ("AuthEnable", messages.AuthEnableRequest()),
    ]
    member, options = await coord.etcd._transport.stream(timeout_s=2)
    for name, request in steps:
        await getattr(member.auth, name)(request, **options)
