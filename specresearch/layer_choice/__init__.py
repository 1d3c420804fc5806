"""Choose the sublayers that a target drafts without, by measured acceptance and times."""
