"""Files with which the system is deployed, and what makes some of them. Not part of the package."""
