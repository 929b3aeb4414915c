"""Wire forms of answers: an encoder for each, behind the protocol in `form`."""
