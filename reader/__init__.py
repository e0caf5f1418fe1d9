"""One change stream partition query: statement, transport, decoding, ending."""
