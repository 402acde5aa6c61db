"""What every store promises and shares, whatever keeps the rows. No dependency on any engine."""
