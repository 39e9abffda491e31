"""Trees of files, walked by descriptors, and packed into a stream."""
