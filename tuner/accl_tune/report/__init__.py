"""Reports: tables as text, pictures as files."""
