"""The supervisor: joins images, storage and an engine, keeps sandboxes, talks to the agents inside."""
