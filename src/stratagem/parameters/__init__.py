"""Variables that live on parameter servers: how they are cut, kept, updated and reached."""
