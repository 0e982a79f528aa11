"""What a comparison of two runs comes to: verdict, exit code and page."""
