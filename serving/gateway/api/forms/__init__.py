"""Wire forms of responses: an encoder for each, behind the protocol in `form`."""
