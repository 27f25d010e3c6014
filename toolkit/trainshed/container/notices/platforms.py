"""Which cloud this machine belongs to, by the strings of its firmware; without any network access."""

from __future__ import annotations

from trainshed.contract.wire.variables import AZURE_METADATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DMI = "/sys/class/dmi/id"
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # chassis asset tag of every Azure machine
# A variable that names an endpoint says that there is a service. The vendors' own libraries read the first two.
ENDPOINTS = {"ec2": "AWS_EC2_METADATA_SERVICE_ENDPOINT", "gce": "GCE_METADATA_HOST", "azure": AZURE_METADATA}


def present(environ: Mapping[str, str], dmi: str = DMI) -> list[str]:
    """The platforms whose notices can be watched here: some of `ec2`, `gce`, `azure`."""
    vendor, product, tag = (_read(f"{dmi}/{name}") for name in ("sys_vendor", "product_name", "chassis_asset_tag"))
    evidence = {
        "ec2": vendor == "Amazon EC2" or tag == "Amazon EC2",
        "gce": product == "Google Compute Engine",
        "azure": tag == _AZURE_TAG,
    }
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        evidence["ec2"] = False
        environ = {name: value for name, value in environ.items() if name != ENDPOINTS["ec2"]}
    return [name for name, found in evidence.items() if found or environ.get(ENDPOINTS[name])]


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(256).decode("ascii", "replace").strip()
    except OSError:
        return ""
