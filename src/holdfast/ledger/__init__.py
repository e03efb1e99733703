"""What credit is: rules without machinery. Nothing here knows trio, SQL or HTTP."""
