"""What keeps sandboxes: it joins images, storage and an engine, and talks to the agents inside."""
