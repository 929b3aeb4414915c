"""The gateway: owns the requests that it accepted, from admission to their last token."""
