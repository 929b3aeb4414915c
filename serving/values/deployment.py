"""Progress of a deployment, from its deployer to the scaling board."""

from msgspec import Struct


class DeploymentNotice(Struct, frozen=True):
    """One stage of a deployment, or its end.

    Args:
        author: user, host and process of the deployer.
        configuration: digest of configuration and code.
        stage: the present change, or the result.
        targets: replicas that the configuration newly requests, by deployment; all others keep theirs.
        over: whether the deployment has ended.
    """

    author: str
    configuration: str
    stage: str
    targets: dict[str, int] = {}
    over: bool = False
