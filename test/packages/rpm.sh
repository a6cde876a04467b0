rpm_lifecycle() { check "rpm" false; }
