"""The rooms: what each answers. A module is imported when its first question comes."""
