-- Runs once, on an empty volume. Each server has a role that owns only its databases.
\set prefect_password `cat /run/secrets/prefect_database_password`
\set mlflow_password `cat /run/secrets/mlflow_database_password`
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
REVOKE CONNECT ON DATABASE prefect, mlflow, mlflow_auth FROM PUBLIC;
