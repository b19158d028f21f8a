"""Jobs in the store, from enqueue to retention."""
