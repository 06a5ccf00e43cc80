"""What the pages of the book need beside the library and the runs: figures, the ledger of claims, curved surfaces."""
