"""The members that serve one database together: who owns which accounts, and how asks reach them."""
