"""Pages that change the cluster: each asks first, does it, and tells what each daemon did."""
