"""News of a deployment, from its deployer to the scaling board."""

from msgspec import Struct


class DeploymentNotice(Struct, frozen=True):
    """One stage of a deployment, or its end.

    Args:
        author: user, host and process of the deployer.
        configuration: digest of configuration and code.
        stage: what changes now, or how it ended.
        targets: replicas that the configuration asks for anew, by deployment; all others keep theirs.
        over: nothing more is deployed.
    """

    author: str
    configuration: str
    stage: str
    targets: dict[str, int] = {}
    over: bool = False
