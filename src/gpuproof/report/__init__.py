"""Reports: one model of what a run says, and the forms it is shown in."""
