"""Tests of measuring: prompt sets, paired figures, charts and pages."""
