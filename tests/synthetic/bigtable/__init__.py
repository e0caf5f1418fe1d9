"""Cloud Bigtable's change streams, as a server that needs no Bigtable plays them."""
